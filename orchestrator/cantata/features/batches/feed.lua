-- Takes or renews the right to feed a batch. Given: {feeder: a name of this process, ms: how long; 0 gives it up}
-- Replies {the process that feeds it now, field, value, ...}; {} if there is no such batch.
if redis.call('EXISTS', B) == 0 then return {} end
local feeder = redis.call('GET', B .. ':feeder') or given.feeder
if feeder == given.feeder then
  if given.ms == 0 then redis.call('DEL', B .. ':feeder') else redis.call('SET', B .. ':feeder', feeder, 'PX', given.ms) end
end
return {feeder, unpack(all_fields())}
