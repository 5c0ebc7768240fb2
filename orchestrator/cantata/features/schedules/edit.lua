-- Pauses, resumes or deletes a schedule, or adds pending times to it. ARGV: schedule, the change (JSON): {pause: note}, {resume: next time or "",
-- look_at}, {delete: true} or {pending: [JSON, ...], max}. Replies ok, unknown, or full (it has too many pending times).
local scope, change = ARGV[1], cjson.decode(ARGV[2])
local key, list = schedule_key(scope), S .. ':schedules'
local known = redis.pcall('HMGET', key, 'definitions', 'paused')
if change.delete then -- whatever its keys are
  if known[1] then pcall(release_definitions, known[1], 0) end
  discharge('schedule:' .. scope)
  redis.call('UNLINK', key, key .. ':pending', key .. ':runs')
  redis.call('HDEL', S .. ':parked', 'schedules|' .. scope)
  redis.call('ZREM', list, scope)
  return 'ok'
end
if known.err then return redis.error_reply(known.err) end
if not known[1] then return 'unknown' end
redis.call('HDEL', S .. ':parked', 'schedules|' .. scope) -- whoever edits it may have corrected it
if change.pause then
  charge_more('schedule:' .. scope, #change.pause - #(redis.call('HGET', key, 'pause_note') or ''))
  redis.call('HSET', key, 'paused', 1, 'pause_note', change.pause)
  redis.call('ZADD', list, 'inf', scope)
elseif change.resume then
  if not known[2] then return 'ok' end
  charge_more('schedule:' .. scope, -#(redis.call('HGET', key, 'pause_note') or ''))
  redis.call('HDEL', key, 'paused', 'pause_note')
  redis.call('HSET', key, 'next', change.resume)
  redis.call('ZADD', list, redis.call('EXISTS', key .. ':pending') == 1 and now or change.look_at, scope)
elseif change.pending then
  if redis.call('LLEN', key .. ':pending') + #change.pending > change.max then return 'full' end
  redis.call('RPUSH', key .. ':pending', unpack(change.pending))
  local bytes = 0
  for _, entry in ipairs(change.pending) do bytes = bytes + #entry end
  charge_more('schedule:' .. scope, bytes)
  if not known[2] then redis.call('ZADD', list, 'LT', now, scope) end
end
return 'ok'
