"""The rules of one region, as pure functions over its rows: `state.Region` in, `state.Region` out.

Read them in the order of a region's life. `rows`, `events` and `state` are the words; `lifecycle` and `membership` say
how it starts, what happens by itself, and who comes; `claims` and `batches` what members may do, `lost_logs` what if
the brokers lose their logs; `boundaries`, `checkpoints` and `completion` make a checkpoint; `plans`, `resets` and
`person_resets` a reset; `timelines` says what remains; `view` is what a member sees.
"""
