-- Between ledger/lib.lua and the scripts that read lists.

-- By their bytes, as Redis sorts: Lua's own order is that of a language.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end
