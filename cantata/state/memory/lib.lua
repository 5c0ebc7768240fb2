-- The prelude of every script of the memory bank: its keys.
-- KEYS[1] = T, cantata:{memory:<tenant>}: all memories of a tenant are in one slot. Names in keys are percent-encoded.
--
-- Of a scope S, which is T for the tenant and T:session:<session> for one of its sessions:
--   S:values:<namespace>  hash    key -> mark items value: the mark of the last write, how many items a list has (else -), JSON text
--   S:ends:<namespace>    zset    key -> when it ends (ms); keys that stay are not in it
--   S:namespaces          zset    namespace -> when the last of its keys ends, inf if one stays
--   S:ttls                hash    namespace -> how long its keys live if they are given no time of their own (ms)   stays
-- Of the tenant, for its quota; memories that have a time to live do not count:
--   T:lasting             hash    <scope>|<namespace> -> bytes of its keys and values      entries go with their memories
--   T:kept                hash    bytes: of all of them                                    "
-- Of a write:
--   T:replies:<mark>      string  its reply, so that a repeated write is executed once                                  expires after two minutes
--
-- Redis 7 and Valkey expire whole keys only, so each reader checks the expiry of a memory. Expired ones are removed by later writes to their
-- namespace; a namespace of which all keys expire expires with the last of them.

local T = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local REPLY_MS = 120000 -- ms; longer than anybody has patience with a Redis that is away, and the last call of his may take
local MAX_REMOVED = 100    -- memories removed in one call, so that it stays short

local function place_of(scope, namespace)
  local S = T .. scope
  return {name = namespace, member = scope .. '|' .. namespace, values = S .. ':values:' .. namespace, ends = S .. ':ends:' .. namespace, all = S .. ':namespaces', ttls = S .. ':ttls'}
end

-- When a memory ends, if it does; and whether it has.
local function end_of(place, key)
  local ends = tonumber(redis.call('ZSCORE', place.ends, key))
  return ends, ends ~= nil and ends <= now
end

local function known(place, key)
  local _, is_over = end_of(place, key)
  return not is_over and redis.call('HGET', place.values, key)
end

local function count_of(place)
  return redis.call('HLEN', place.values) - redis.call('ZCOUNT', place.ends, '-inf', now)
end

local function expire(key, at)
  if at == 'inf' then redis.call('PERSIST', key) else redis.call('PEXPIREAT', key, at) end
end

-- Removes what has ended, and has Redis remove the rest when the last of it ends.
local function tidy(place)
  local past = redis.call('ZRANGEBYSCORE', place.ends, '-inf', now, 'LIMIT', 0, MAX_REMOVED)
  if #past > 0 then
    redis.call('HDEL', place.values, unpack(past))
    redis.call('ZREM', place.ends, unpack(past))
  end
  local kept = redis.call('HLEN', place.values)
  if kept == 0 then
    redis.call('ZREM', place.all, place.name)
  else
    local last = 'inf'
    if kept == redis.call('ZCARD', place.ends) then last = redis.call('ZRANGE', place.ends, -1, -1, 'WITHSCORES')[2] end
    expire(place.values, last)
    expire(place.ends, last)
    redis.call('ZADD', place.all, last, place.name)
  end
  redis.call('ZREMRANGEBYSCORE', place.all, '-inf', now)
  local last = redis.call('ZRANGE', place.all, -1, -1, 'WITHSCORES')[2]
  if last then expire(place.all, last) end
end

-- The bytes of a memory that stays.
local function lasting(place, key)
  local packed = not end_of(place, key) and redis.call('HGET', place.values, key)
  return packed and #key + #packed or 0
end

local function count(place, n)
  if n == 0 then return end
  if redis.call('HINCRBY', T .. ':lasting', place.member, n) <= 0 then redis.call('HDEL', T .. ':lasting', place.member) end
  if redis.call('HINCRBY', T .. ':kept', 'bytes', n) <= 0 then redis.call('HDEL', T .. ':kept', 'bytes') end
end

-- Which quota does not allow n bytes more, and what is used of it.
local function exceeded(place, n, write)
  if n <= 0 then return nil end
  local bytes = tonumber(redis.call('HGET', T .. ':kept', 'bytes') or 0)
  if bytes + n > write.memory_bytes then return 'memory_bytes', bytes end
  local namespaces = redis.call('HLEN', T .. ':lasting')
  if redis.call('HEXISTS', T .. ':lasting', place.member) == 0 and namespaces >= write.memory_namespaces then return 'memory_namespaces', namespaces end
end

-- Keeps a memory for so many ms; without a number as long as it was to be kept before, and a new one as long as its namespace says.
-- Replies which quota does not allow it, and what is used of it.
local function put(place, write, items, value, ttl)
  local key = write.key
  local ends, is_over = end_of(place, key)
  local is_new = is_over or redis.call('HEXISTS', place.values, key) == 0
  if ttl ~= 'keep' or is_new then
    ttl = tonumber(ttl) or tonumber(redis.call('HGET', place.ttls, place.name))
    ends = ttl and now + ttl
  end
  local packed = table.concat({write.mark, items, value}, ' ')
  local more = (ends and 0 or #key + #packed) - lasting(place, key)
  local which, used = exceeded(place, more, write)
  if which then return which, used end
  count(place, more)
  redis.call('HSET', place.values, key, packed)
  if ends then redis.call('ZADD', place.ends, ends, key) else redis.call('ZREM', place.ends, key) end
  tidy(place)
end

local function earlier_reply(mark) return redis.call('GET', T .. ':replies:' .. mark) end

local function record_reply(mark, answer)
  redis.call('SET', T .. ':replies:' .. mark, answer, 'PX', REPLY_MS)
  return answer
end
