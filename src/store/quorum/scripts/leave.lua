-- leave.lua: gives this master back: for good, or to try again later.
-- ARGV: token, 'ran', 'not-run' or 'refused' (it did not wait), how the job ended (JSON or ''), 'for-good' or the attempt that has failed.
-- Replies: {'released', …, cooling ms} · {'already', …} · {'not-held', …}.
-- Why atomic: compare and delete. For good, the token is spent, and an acquire that is still on its way is refused
-- (I4). An attempt that failed takes back only itself and what came before it: it may arrive, on a connection of its
-- own, after the next attempt of the same token was granted and counted here.

local token, ran, job, attempt = ARGV[1], ARGV[2] == 'ran', ARGV[3], tonumber(ARGV[4])
write_first()
local spent = redis.call('GET', spent_key(token))
if spent then return answer(spent == '1' and 'already' or 'not-held') end

load(token)
expire()
local what, cooling = 'not-held', 0
if is_held_by(token) and (not attempt or hold.attempt <= attempt) then
  local due = hold.cool
  if ran then
    finish('released', job)
    cool_or_free(due)
  else
    forget_hold()
    free()
  end
  what = 'released'
  if lock == 'cooling' then cooling = left(lock_until) end
elseif is_revoked_from(token) then
  forget_hold()
  free()
  what = 'released'
end
if ARGV[2] == 'refused' then tally({ busy = 1 }) end
if not attempt then
  redis.call('SET', spent_key(token), what == 'released' and '1' or '0', 'PX', SPENT_KEPT)
end
return answer(what, int(cooling))
