-- The prelude of every script of the memory bank: its keys.
-- KEYS[1] = T, cantata:{memory:<tenant>}: all memories of a tenant are in one slot. Names in keys are percent-encoded.
--
-- Of a scope S, which is T for the tenant and T:session:<session> for one of its sessions:
--   S:values:<namespace>  hash    key -> mark items value: the mark of the last write, how many items a list has (else -), JSON text
--   S:ends:<namespace>    zset    key -> when it ends (ms); keys that stay are not in it
--   S:namespaces          zset    namespace -> when the last of its keys ends, inf if one stays
--   S:ttls                hash    namespace -> how long its keys live if they are given no time of their own (ms)   stays
-- Of the tenant, for its quota:
--   T:lasting             hash    <scope>|<namespace> -> bytes of its memories, and of its entry in S:ttls    entries go with the last of these
--   T:kept                hash    bytes: of all of them                                    "
--   T:last_ends           zset    <scope>|<namespace> -> when the last of its memories ends, inf if one stays   "; when all end, these four expire with the last
--   T:ending              zset    <scope>|<namespace> -> when the first of its memories ends (ms)    entries go with the last memory that ends
-- Of a write:
--   T:replies:<mark>      string  its reply, so that a repeated write is executed once                                  expires after two minutes
--
-- Redis 7 and Valkey expire whole keys only, so each reader checks the expiry of a memory. Expired ones are removed, and counted no more, by later writes
-- of the tenant and whenever its quota is read; a namespace of which all keys expire expires with the last of them.
-- The mark of a counted memory ends in COUNTED. Versions before this one counted only those that stay, without ENTRY_BYTES.

local T = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local REPLY_MS = 120000 -- ms; longer than anybody has patience with a Redis that is away, and the last call of his may take
local MAX_REMOVED = 100    -- memories removed in one call, so that it stays short
local MAX_TIDIED = 10      -- namespaces looked at for expired memories in one call
local MAX_READ = 2000000   -- bytes of expired memories read in one call
local ENTRY_BYTES = 100    -- of an entry of a hash or zset beside its texts
local NAMESPACE_BYTES = 500 -- of a namespace beside its entries: its keys, and entries about it
local COUNTED = '+'

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

-- Has keys expire at the last time in a zset, if it is not empty; without a zset they stay.
local function expire_with(ends, keys)
  local last = not ends and 'inf' or redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]
  for _, key in ipairs(last and keys or {}) do expire(key, last) end
end

-- The bytes that are counted for a memory.
local function size_of(key, packed, ends)
  if not packed then return 0 end
  if not string.find(packed, '^%S+%' .. COUNTED .. ' ') then return ends and 0 or #key + #packed end
  return #key + #packed + ENTRY_BYTES + (ends and #key + ENTRY_BYTES or 0)
end

-- Sets, or changes by n, the bytes that are counted for a namespace; 0 if it has none.
local function count(place, n, total)
  local before = tonumber(redis.call('HGET', T .. ':lasting', place.member) or 0)
  total = total or n ~= 0 and math.max(0, before + n + (before == 0 and NAMESPACE_BYTES or 0)) or before
  if total == before then return end
  if total == 0 then redis.call('HDEL', T .. ':lasting', place.member) else redis.call('HSET', T .. ':lasting', place.member, total) end
  if redis.call('HINCRBY', T .. ':kept', 'bytes', total - before) <= 0 then redis.call('HDEL', T .. ':kept', 'bytes') end
end

-- The bytes of a namespace without memories: those of its time to live.
local function bare_bytes(place)
  return redis.call('HEXISTS', place.ttls, place.name) == 1 and #place.name + ENTRY_BYTES or 0
end

-- Removes what has ended, and has Redis remove the rest when the last of it ends.
local removed, read = 0, 0
local function tidy(place)
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', place.ends, '-inf', now, 'LIMIT', 0, MAX_REMOVED - removed)) do
    if read > MAX_READ then break end
    local packed = redis.call('HGET', place.values, key)
    removed, read = removed + 1, read + #(packed or '')
    count(place, -size_of(key, packed, true))
    redis.call('HDEL', place.values, key)
    redis.call('ZREM', place.ends, key)
  end
  local kept = redis.call('HLEN', place.values)
  local first = redis.call('ZRANGE', place.ends, 0, 0, 'WITHSCORES')[2]
  if first then redis.call('ZADD', T .. ':ending', first, place.member) else redis.call('ZREM', T .. ':ending', place.member) end
  local last = 'inf'
  if kept == 0 then
    local bare = bare_bytes(place)
    redis.call('ZREM', place.all, place.name)
    count(place, 0, bare > 0 and bare + NAMESPACE_BYTES or 0)
    last = bare > 0 and last
  else
    if kept == redis.call('ZCARD', place.ends) then last = redis.call('ZRANGE', place.ends, -1, -1, 'WITHSCORES')[2] end
    expire(place.values, last)
    expire(place.ends, last)
    redis.call('ZADD', place.all, last, place.name)
  end
  if last then redis.call('ZADD', T .. ':last_ends', last, place.member) else redis.call('ZREM', T .. ':last_ends', place.member) end
  redis.call('ZREMRANGEBYSCORE', place.all, '-inf', now)
  expire_with(place.all, {place.all})
  local is_whole = redis.call('ZCARD', T .. ':last_ends') == redis.call('HLEN', T .. ':lasting') -- others were written by older versions
  expire_with(is_whole and T .. ':last_ends', {T .. ':last_ends', T .. ':ending', T .. ':lasting', T .. ':kept'})
end

-- Tidies namespaces of the tenant that have memories which have ended.
local function tidy_ended()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', T .. ':ending', '-inf', now, 'LIMIT', 0, MAX_TIDIED)) do
    if removed < MAX_REMOVED and read <= MAX_READ then tidy(place_of(string.match(member, '^(.*)|([^|]*)$'))) end
  end
end

-- Which quota does not allow n bytes more, and what is used of it.
local function exceeded(place, n, write)
  if n <= 0 then return nil end
  tidy_ended()
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
  local before = redis.call('HGET', place.values, key)
  local counted = size_of(key, before, ends)
  if ttl ~= 'keep' or is_over or not before then
    ttl = tonumber(ttl) or tonumber(redis.call('HGET', place.ttls, place.name))
    ends = ttl and now + ttl
  end
  local packed = table.concat({write.mark .. COUNTED, items, value}, ' ')
  local which, used = exceeded(place, size_of(key, packed, ends) - counted, write)
  if which then return which, used end
  if redis.call('HEXISTS', place.values, key) == 0 then counted = 0 end -- it had ended, and was tidied
  count(place, size_of(key, packed, ends) - counted)
  redis.call('HSET', place.values, key, packed)
  if ends then redis.call('ZADD', place.ends, ends, key) else redis.call('ZREM', place.ends, key) end
  tidy(place)
end

local function earlier_reply(mark) return redis.call('GET', T .. ':replies:' .. mark) end

local function record_reply(mark, answer)
  redis.call('SET', T .. ':replies:' .. mark, answer, 'PX', REPLY_MS)
  return answer
end
