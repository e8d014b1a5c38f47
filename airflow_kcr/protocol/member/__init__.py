"""One member as a state machine: `step(member, event, now) -> (member, effects)`, pure (tests/annex/moves.md).

`state` has the states and what a member remembers, `messages` what happens to it and what it wants done. `step` records
what an event says; `drive` is what follows from the facts, whatever event brought them, by its own rules and those of
`presence`, `duties` and `discovery`.
"""
