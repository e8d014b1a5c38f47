"""Tables of Iceberg catalogs, committed to with PyIceberg."""
