"""A simulated world: members run the real state machine against the real store verbs, everything else is made up.

Time is virtual, chance comes from one seed, and the same seed gives the same run to the last event. `world` is the
clock and the queue, `broker` Kafka, `sinks` where output goes, `host` a process with one member, `faults` what happens
to them, `run` puts them together and judges the outcome.
"""
