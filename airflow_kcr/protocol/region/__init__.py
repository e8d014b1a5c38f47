"""The rules of one region, as pure functions over its rows: `state.Region` in, `state.Region` out.

Read them in the order of a region's life. `rows`, `events` and `state` are the words; `lifecycle` and `membership` say
how it starts and who comes; `claims` and `batches` what members may do; `requests`, `boundaries`, `checkpoints` and
`completion` make a checkpoint; `plans`, `resets`, `person_resets`, `resolution`
a reset; `timelines` and `retirement` say what remains; `reconciliation` does what happens by itself; `view` is what a
member sees.
"""
