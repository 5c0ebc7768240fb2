-- Replies the positions of the shards in which a sweep has something to do, or a key has a wrong type. KEYS[1], ARGV: their prefixes, in a cluster of one.
local function has(command, ...)
  local found = redis.pcall(command, ...)
  return type(found) == 'table' or found > 0
end

local due = {}
for place, shard in ipairs({S, unpack(ARGV)}) do
  local is_due = has('EXISTS', shard .. ':left', shard .. ':clearing', shard .. ':revoked', shard .. ':parked')
  for _, part in ipairs({':leases', ':due', ':ready', ':tasks', ':finished', ':schedules', ':item_ends', ':unfinished'}) do
    is_due = is_due or has('ZCOUNT', shard .. part, '-inf', now)
  end
  if is_due then due[#due + 1] = place end
end
return due
