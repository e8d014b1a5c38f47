"""Kafka, over confluent-kafka: a member's place in its group, the logs, groups from outside, and client settings.

What the client really does in each fault was found by experiment; the comments here say what follows from it.
"""
