-- The flights of a topic as their numbers; records that are none are left out (`result.from_topic`).
WITH raw AS (
    SELECT j.* FROM {records}
    LATERAL VIEW json_tuple(
        CAST(value AS STRING), 'carrier', 'origin', 'scheduled', 'year', 'month', 'day', 'hour', 'dep_delay',
        'arr_delay'
    ) j AS carrier, origin, scheduled, year, month, day, hour, dep_delay, arr_delay
)
SELECT carrier, origin,
       try_cast(year AS INT) AS year, try_cast(month AS INT) AS month,
       try_cast(day AS INT) AS day, try_cast(hour AS INT) AS hour,
       try_cast(dep_delay AS INT) AS dep_delay, try_cast(arr_delay AS INT) AS arr_delay
FROM raw
WHERE carrier IS NOT NULL AND origin IS NOT NULL AND try_cast(scheduled AS TIMESTAMP) IS NOT NULL
  AND try_cast(year AS INT) + try_cast(month AS INT) + try_cast(day AS INT) + try_cast(hour AS INT) IS NOT NULL
  AND (dep_delay IS NULL OR try_cast(dep_delay AS INT) IS NOT NULL)
  AND (arr_delay IS NULL OR try_cast(arr_delay AS INT) IS NOT NULL)
