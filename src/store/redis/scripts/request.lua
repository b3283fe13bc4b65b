-- request.lua: asks a hold to end, and wakes its dlock (rules: LockTable::request).
-- ARGV: fence, operator (JSON).
-- Replies: {'asked', now us} · {'gone', now us}.
-- Why atomic: it acts on the hold that was shown, not on a later one.

local fence, by, answer = ARGV[1], ARGV[2], 'gone'
write_first()
local lock = named()[1]
expire(lock)
if lock.kind == 'exclusive' or is_many(lock) then
  for _, one in ipairs(all_holds(lock)) do
    if one.hold.phase == 'held' and one.hold.fence == fence then
      answer = 'asked'
      if one.hold.asked == '' then
        one.hold.asked = by
        save(lock, one.token, one.hold)
      end
      wake(lock.rest, one.token, 'holder')
    end
  end
end
grant_next({ lock.rest })
tell()
return { answer, int(us) }
