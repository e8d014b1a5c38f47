"""The main job, on real data, with everything real: what `kcr demo` does, and how it judges what has come of it.

`stage` starts the services, `play` is what happens on it, `topic` asks Kafka without this project's help, `judgement`
compares, and `audience` shows all of it.
"""
