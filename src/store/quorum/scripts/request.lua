-- request.lua: asks the hold with this fence to end. Its holder learns of it by its next renewal.
-- Argument: fence, by (the operator).
-- Replies: asked · gone.
-- Why atomic: it acts on the hold that was shown, not on a later one.

write_first()
local lock = named()[1]
expire(lock)
local hold = lock.kind == 'exclusive' and hold_of(lock, lock.token)
if not hold or ms >= hold['until'] or hold.fence ~= arg.fence then return answer('gone') end
if not hold.asked then
  hold.asked = arg.by
  save(lock, lock.token, hold)
end
return answer('asked')
