-- The delays by carrier and hour of all flights in one go, with airline and weather (`result._delays`).
WITH wet AS (
    SELECT origin, year, month, day, hour, max(CAST(precip AS DOUBLE)) AS inches
    FROM {weather} GROUP BY origin, year, month, day, hour
)
SELECT f.carrier, any_value(a.name) AS airline, f.year, f.month, f.day, f.hour,
       count(*) AS flights,
       count(*) - count(f.dep_delay) AS cancelled,
       sum(f.dep_delay) AS dep_delay_sum,
       sum(f.arr_delay) AS arr_delay_sum,
       sum(CASE WHEN w.inches > 0 THEN 1 ELSE 0 END) AS with_precipitation,
       sum(CASE WHEN w.inches IS NULL THEN 1 ELSE 0 END) AS without_weather,
       max(f.dep_delay) AS dep_delay_max
FROM {flights} f
LEFT JOIN wet w
    ON w.origin = f.origin AND w.year = f.year AND w.month = f.month AND w.day = f.day AND w.hour = f.hour
LEFT JOIN {airlines} a ON a.carrier = f.carrier
GROUP BY f.carrier, f.year, f.month, f.day, f.hour
