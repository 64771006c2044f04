"""The paper's experiments: rows of data (`experiments.json`), runs that become records, reports made of records.

This package uses the library; the library never imports it.
"""
