"""The kinds of sinks: one module each, called as the spec's word, whose `KIND` is the class of sinks declared so.

A new kind is a module here, and its word, fields and checks in `airflow_kcr.spec.sinks`. It is imported with the first
spec that has such a sink.
"""
