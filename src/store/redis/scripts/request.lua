-- request.lua: asks a hold to end, and wakes its dlock (rules: LockTable::request).
-- Argument: fence, by (the operator), prefix of the lock's name.
-- Replies: asked · gone.
-- Why atomic: it acts on the hold that was shown, not on a later one.

local outcome = 'gone'
write_first()
local lock = named()[1]
expire(lock)
if lock.kind == 'exclusive' or is_many(lock) then
  for _, one in ipairs(all_holds(lock)) do
    if one.hold.phase == 'held' and one.hold.fence == arg.fence then
      outcome = 'asked'
      if not one.hold.asked then
        one.hold.asked = arg.by
        save(lock, one.token, one.hold)
      end
      wake(lock.rest, one.token, 'holder')
    end
  end
end
grant_next({ lock.rest })
tell()
return answer(outcome)
