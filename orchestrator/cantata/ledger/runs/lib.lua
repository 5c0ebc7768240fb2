-- Between ledger/lib.lua and the scripts that read lists.

-- By their bytes, as Redis sorts: Lua's own order is that of a language.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

count_calls()

local MAX_CALLS = 1000 -- commands of one call, of some 2 ms
local MAX_BYTES = 500000 -- of the texts that one call looks at
local looked_at = 0 -- bytes of them so far

-- Counts a text that is looked at, and replies it; '' for one that there is not.
local function look_at(text)
  looked_at = looked_at + #(text or '')
  return text or ''
end

-- Whether a call looks at no more: whoever made it goes on behind the last place.
local function has_seen_enough() return calls >= MAX_CALLS or looked_at >= MAX_BYTES end
