"""The application that hosts members of one group: the process that a person or an Airflow task starts.

It alone puts store, Kafka, runtime, Spark and sinks together.
"""
