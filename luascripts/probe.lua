-- probe.lua: due -> due (it changes nothing)
--
-- KEYS[1]  tries  hash, id -> tries
--
-- Returns  1
-- Cost     O(1)

-- A write of nothing: Redis refuses it where it would refuse any other, but for want of memory.
call('HDEL', KEYS[1], '')
return 1
