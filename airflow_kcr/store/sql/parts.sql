-- What statements of several subjects have in common, and the indexes that answer them.

-- part: current
-- Whether a checkpoint is current, as `Checkpoint.is_current` says.
undone_by IS NULL AND (state IN ('complete', 'published') OR state = 'retired' AND previous IS NOT NULL)

-- part: usable
-- Whether it is on the current timeline and has its offsets.
undone_by IS NULL AND state IN ('complete', 'published')

-- part: aligned
-- Whether it is on the current timeline and aligned to a boundary.
boundary IS NOT NULL AND {current}

-- part: turn
-- Tells the two kinds of seek entries apart, each in the order of the epochs: what `lowest` looks them up by. No column
-- and nothing that another index could answer, or a planner that knows little of the table would take that.
CASE WHEN rewinds THEN -epoch ELSE epoch END

-- part: width
-- Of a range: where its length, as a binary number of 64 digits, has its first 1. So a range of width `w` is shorter than
-- 2^(65 - w), which bounds how far beyond a record ranges that have it can end: with the width before its end, an index
-- finds them among any number of others, of any lengths (`containing`).
POSITION('1'::bit(1) IN (to_offset - from_offset)::bit(64))
