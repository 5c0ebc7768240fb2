-- Creates or replaces a schedule. ARGV: schedule, the rest (JSON): {fields: of its hash; definitions and timing among them, tenant, look_at,
-- definitions_text?, only_new?: do not replace}. With the same timing, its times go on as they were. Replies ok, exists, or undefined (the text of the definitions is missing).
local scope, given = ARGV[1], cjson.decode(ARGV[2])
local key, fields = schedule_key(scope), given.fields
local before = redis.call('HMGET', key, 'definitions', 'timing', 'paused')
if before[1] and given.only_new then return 'exists' end
if not store_definitions(fields.definitions, given.definitions_text) then return 'undefined' end
retain_definitions(fields.definitions)
if before[1] then release_definitions(before[1], 0) end
if before[2] == fields.timing then fields.next = nil end
local rows, bytes = {'mark', string.format('%d', redis.call('HINCRBY', key, 'mark', 1))}, 0
for field, value in pairs(fields) do
  rows[#rows + 1] = field; rows[#rows + 1] = value
  bytes = bytes + #value
end
local counted, own_bytes = charged('schedule:' .. scope), tonumber(redis.call('HGET', key, 'bytes') or nil)
charge(given.tenant, 'schedule:' .. scope, bytes + (counted and own_bytes and counted - own_bytes or 0)) -- the rest is of its pending times
rows[#rows + 1] = 'bytes'; rows[#rows + 1] = bytes
redis.call('HSETNX', key, 'created_at', now)
hset_all(key, rows)
local was_parked = redis.call('HDEL', S .. ':parked', 'schedules|' .. scope) == 1
if before[2] == fields.timing and was_parked and not before[3] then
  redis.call('HDEL', key, 'error')
  redis.call('ZADD', S .. ':schedules', 'LT', now, scope)
end
if before[2] ~= fields.timing then
  redis.call('HDEL', key, 'error', 'skipped_ms', 'grace_ms')
  redis.call('ZADD', S .. ':schedules', before[3] and 'inf' or given.look_at, scope)
end
return 'ok'
