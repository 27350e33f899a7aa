"""Airflow on one machine: its own home, configuration, processes and end.

Nothing here imports Airflow: it is started as programs with an environment of our making.
"""
