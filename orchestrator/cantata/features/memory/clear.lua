-- Forgets a scope, or one namespace of it, at most MAX_CLEARED namespaces in one call. ARGV: scope, namespace or "" for all
-- Replies how many memories that were, and 1 if there are more namespaces.
local MAX_CLEARED = 50 -- about 20 commands for each
local forgotten = 0
local all = place_of(ARGV[1], '').all
for _, namespace in ipairs(ARGV[2] ~= '' and {ARGV[2]} or redis.call('ZRANGE', all, 0, MAX_CLEARED - 1)) do
  local place = place_of(ARGV[1], namespace)
  local is_known, n = pcall(count_of, place) -- else its keys have another type
  forgotten = forgotten + (is_known and n or 1)
  redis.call('UNLINK', place.values, place.ends)
  tidy(place)
end
return {forgotten, ARGV[2] == '' and redis.call('EXISTS', all) or 0}
