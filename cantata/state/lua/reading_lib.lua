-- The prelude of the scripts that only read. KEYS[1] = {shard prefix}, as in lib.lua, which lists the keys of a run.
local S = KEYS[1]

local function run_key(run) return S .. ':run:' .. run end

-- At most so many bytes of a text, cut between two characters.
local function beginning(text, most)
  if #text <= most then return text end
  while most > 0 and string.byte(text, most + 1) >= 128 and string.byte(text, most + 1) < 192 do most = most - 1 end
  return string.sub(text, 1, most)
end
