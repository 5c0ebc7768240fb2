-- Finds memories. ARGV: {scope, namespace, key}, ...; replies for each "mark items value", or false.
local found = {}
for i = 1, #ARGV, 3 do
  found[#found + 1] = known(place_of(ARGV[i], ARGV[i + 1]), ARGV[i + 2])
end
return found
