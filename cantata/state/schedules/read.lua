-- Reads schedules of a shard: one, or all whose name begins with a prefix that ends in '/' or is empty. ARGV: the name or prefix, how many of their last
-- runs. Replies for each {name, fields and values of its hash, number of pending times, its last runs: {run, its time, status or "", when it
-- started or ""}, now, why it cannot be read?}.
local wanted, runs = ARGV[1], tonumber(ARGV[2])
local found = {}

local function read(scope)
  local key, last = schedule_key(scope), {}
  for _, entry in ipairs(redis.call('LRANGE', key .. ':runs', 0, runs - 1)) do
    local id, at = string.match(entry, '^([^|]*)|(.*)$')
    local run_fields = redis.pcall('HMGET', S .. ':run:' .. id, 'status', 'created_at') -- nothing of a key of another type
    last[#last + 1] = {id, at, run_fields[1] or '', run_fields[2] or ''}
  end
  return {scope, redis.call('HGETALL', key), redis.call('LLEN', key .. ':pending'), last, now}
end

local function add(scope)
  local is_read, reply = pcall(read, scope)
  found[#found + 1] = is_read and reply or {scope, {}, 0, {}, now, reason_of(reply)}
end

if string.find(wanted, '/.') then
  if redis.call('ZSCORE', S .. ':schedules', wanted) then add(wanted) end
else
  for _, scope in ipairs(redis.call('ZRANGE', S .. ':schedules', 0, -1)) do
    if string.sub(scope, 1, #wanted) == wanted then add(scope) end
  end
end
return found
