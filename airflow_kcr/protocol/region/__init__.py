"""The rules of one region, as pure functions over its rows: `state.Region` in, `state.Region` out.

Read them in the order of a region's life. `rows`, `events`, `state` and `commands` are the words, `decisions` is the
table of what is asked of a region. `lifecycle` and `membership` say how it starts and who comes, `foreign_consumers`
and `unowned` who else does and what has no owner, `reconciliation` what happens by itself; `claims` and `batches` what
members may do, `lost_logs` what if the brokers lose their logs, `restored` what if the store does. `boundaries`,
`requests`, `checkpoints` and `completion` make a checkpoint, `publication` and `retention` follow it; `plans`, `resets`
and `person_resets` make a reset; `timelines` says what remains; `view` is what a member sees.
"""
