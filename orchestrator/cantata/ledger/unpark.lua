-- Has a parked item tried again, or drops it. ARGV: duty|item, retry or drop, who does it, and as the event of its run says it (JSON: {by, via, verified}).
-- Replies 1, or 0 if it is not parked.
local key = S .. ':parked'
local text = redis.call('HGET', key, ARGV[1])
if not text then return 0 end
local duty, item = string.match(ARGV[1], '^([^|]*)|(.*)$')
local is_readable, record = pcall(cjson.decode, text)
redis.call('HDEL', key, ARGV[1])
if not DUTIES[duty] then return 1 end
if ARGV[2] == 'retry' then
  put_back(duty, item, now, is_readable and record.place or nil)
elseif duty == 'clearing' then -- it may expire all the same
  use(item)
  if status then expire_run() end
elseif duty == 'schedules' then
  redis.call('HSET', schedule_key(item), 'paused', 1, 'pause_note', 'dropped by ' .. ARGV[3] .. ' after the sweep could not handle it')
end
local detail = cjson.decode(ARGV[4])
detail.duty, detail.action = duty, ARGV[2]
pcall(event_of_item, duty, item, 'unparked', detail)
return 1
