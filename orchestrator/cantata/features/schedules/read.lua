-- Reads some schedules of a shard. ARGV: how many of their last runs, name, ...
-- Replies for each that there is {name, fields and values of its hash, number of pending times, its last runs: {run, its time, status or "", when it
-- started or ""}, now, why it cannot be read?}.
local runs, found = tonumber(ARGV[1]), {}

local function read(scope)
  local key, last = schedule_key(scope), {}
  for _, entry in ipairs(redis.call('LRANGE', key .. ':runs', 0, runs - 1)) do
    local id, at = string.match(entry, '^([^|]*)|(.*)$')
    local run_fields = redis.pcall('HMGET', S .. ':run:' .. id, 'status', 'created_at') -- nothing of a key of another type
    last[#last + 1] = {id, at, run_fields[1] or '', run_fields[2] or ''}
  end
  return {scope, redis.call('HGETALL', key), redis.call('LLEN', key .. ':pending'), last, now}
end

for i = 2, #ARGV do
  local scope = ARGV[i]
  if redis.call('ZSCORE', S .. ':schedules', scope) then
    local is_done, reply = pcall(read, scope)
    found[#found + 1] = is_done and reply or {scope, {}, 0, {}, now, reason_of(reply)}
  end
end
return found
