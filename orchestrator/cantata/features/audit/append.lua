-- Appends an entry to the audit log, and forgets what is too old or too much.
-- KEYS: the shard of the log. ARGV: the stream (`done:<tenant>` or `refused:<tenant>`), how many entries it keeps, for how long (ms), the id of the entry
-- to replace or "", the entry (JSON), or "" to replace it by nothing. The same text again, since a reply was lost, changes nothing.
-- It uses no command that older versions did not: users of Redis (ACL) have rights to single commands.
-- Ids are unique and rise over all streams, so an id is a position in all of them.
-- Replies the id of the entry; "" without one.
local A = KEYS[1] .. ':audit'
local stream, most, keep_ms, replaced, entry = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local key, NEWEST, OLD = A .. ':' .. stream, 20, 100 -- entries that one call looks at, and that it removes since they are too old
if replaced ~= '' then redis.call('XDEL', key, replaced) end
if entry == '' then return '' end
for _, known in ipairs(redis.call('XREVRANGE', key, '+', '-', 'COUNT', NEWEST)) do
  if known[2][2] == entry then return known[1] end
end
local time = redis.call('TIME')
local ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local last_ms, last_number = string.match(redis.call('GET', A .. ':last') or '0-0', '^(%d+)-(%d+)$')
local id = string.format('%.0f-0', ms)
if tonumber(last_ms) >= ms then id = string.format('%s-%d', last_ms, tonumber(last_number) + 1) end
redis.call('XADD', key, 'MAXLEN', most, id, 'e', entry)
local old = {}
for _, known in ipairs(redis.call('XRANGE', key, '-', string.format('(%.0f-0', ms - keep_ms), 'COUNT', OLD)) do old[#old + 1] = known[1] end
if #old > 0 then redis.call('XDEL', key, unpack(old)) end
redis.call('PEXPIRE', key, keep_ms)
redis.call('SET', A .. ':last', id, 'PX', keep_ms)
redis.call('ZADD', A .. ':streams', ms, stream)
redis.call('ZREMRANGEBYSCORE', A .. ':streams', '-inf', '(' .. string.format('%.0f', ms - keep_ms))
redis.call('PEXPIRE', A .. ':streams', keep_ms)
return id
