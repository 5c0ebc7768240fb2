-- Takes those that wait no more out of the lines. ARGV: window, ticket, ...; replies ticket (run|step), ms, ...: whose turn comes sooner.
local sooner = {}
for i = 2, #ARGV do
  local waits = waiting(ARGV[i])
  for _, terms in ipairs(waits and waits.call.limits or {}) do
    local limit = limit_of(unpack(terms))
    leave(limit, ARGV[i])
    hasten(limit, sooner)
  end
  drop(ARGV[i])
end
return sooner
