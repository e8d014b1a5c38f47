"""Real Kafka, Postgres and Spark started from this machine's Python and Java, for `kcr dev`, the demo and the tests."""
