"""The member's loop: it executes what the pure member wants, and feeds the results back (tests/annex/moves.md).

`host.MemberHost` is one member; `planner` says what the next batch reads; `metrics` is what is shown of it.
"""
