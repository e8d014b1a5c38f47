"""The hook: an Airflow connection becomes a region store; and what operators, sensors and triggers have in common.

Nothing is exported here: an import of `airflow_kcr.hooks.links` loads no more than links.
"""
