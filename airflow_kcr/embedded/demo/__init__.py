"""The main job, on real data, with everything real: what `kcr demo` does, and how it judges what has come of it.

`play` starts the services and is what happens on them, `judgement` compares what has come of it with what Kafka
says, and `performance` is all of it.
"""
