-- Forgets a scope, or one namespace of it; replies how many memories that were. ARGV: scope, namespace or "" for all
local forgotten = 0
local all = place_of(ARGV[1], '').all
for _, namespace in ipairs(ARGV[2] ~= '' and {ARGV[2]} or redis.call('ZRANGE', all, 0, -1)) do
  local place = place_of(ARGV[1], namespace)
  forgotten = forgotten + count_of(place)
  count(place, -tonumber(redis.call('HGET', T .. ':lasting', place.member) or 0))
  redis.call('UNLINK', place.values, place.ends)
  redis.call('ZREM', all, namespace)
end
return forgotten
