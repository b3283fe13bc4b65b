-- confirm.lua: phase two. Records the fence of the majority, if the token still has this master.
-- Argument: as that of acquire.lua, with the fence.
-- Replies: confirmed · not-held, and those of acquire.lua for a master that does not count.
-- Why atomic: compare and write. Every later majority has a master that knows this fence, and
-- begins above it.

local token, fence = arg.token, arg.fence
write_first()
local lock = named(token)[1]
expire(lock)
local why = uncounted()
if why then return why end
if not is_held_by(lock, token) then return answer('not-held') end
remember_fence(lock, fence)
expect({ lock }, arg.terms.expect)
forget_turn(lock, token, '#free')
local hold = hold_of(lock, token)
-- On a connection of its own, what an earlier attempt has sent may arrive last.
if hold.attempt and tonumber(arg.attempt) < tonumber(hold.attempt) then return answer('not-held') end
if not hold.confirmed then
  hold.waited = arg.waited
  confirm(lock, hold)
  -- Not from this master's own grant, which may be much earlier than that of the last master that
  -- was counted.
  if arg.min_hold > 0 then hold.cool = ms + arg.min_hold end
  -- A newer run may have come before this hold was confirmed, and so did not ask it to end.
  local newest = arg.terms.replaces and not hold.not_replaceable and newest_of(lock)
  if newest and newest.token ~= token then hold.asked, hold.superseded = newest.owner, true end
end
-- Not the candidate of this master: that may be greater, if this master was not counted.
hold.fence = fence
save(lock, token, hold)
return answer('confirmed')
