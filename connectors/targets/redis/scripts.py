"""What Redis runs for a write: a script compares what is there with what comes, and is one step.

All keys of a script are in one slot of a cluster. Numbers that are kept are the texts that came: Lua's own numbers lose digits.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple


class Script(NamedTuple):
    text: str
    sha: str


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_IS_OLD: Final = """
local function is_old(stored)
  if not stored then return false end
  local topic, part, offset, at = string.match(stored, '^(%S+) (%S+) (%S+) (%S+)$')
  if topic ~= ARGV[1] then return false end
  if part == ARGV[2] then return tonumber(offset) >= tonumber(ARGV[3]) end
  return tonumber(at) > tonumber(ARGV[4])
end
local version = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]
"""
"""ARGV: id of the topic, partition, offset, timestamp. Records of one partition are ordered by their offsets, those of two partitions
by time. Another topic of the name begins anew."""

_KEEP_VERSION: Final = """
local function keep_version(seconds)
  if tonumber(seconds) > 0 then redis.call('SET', KEYS[2], version, 'EX', seconds)
  else redis.call('SET', KEYS[2], version) end
end
"""

DELETE: Final = _script(
    _IS_OLD
    + _KEEP_VERSION
    + """
if is_old(redis.call('GET', KEYS[2])) then return 0 end
redis.call('DEL', KEYS[1])
keep_version(ARGV[5])
return 1
"""
)
"""KEYS: row, version. ARGV[5]: seconds that the version is kept."""

_EXPIRE: Final = """
if tonumber(ARGV[5]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[5]) end
keep_version(ARGV[5])
return 1
"""

STRING: Final = _script(
    _IS_OLD
    + _KEEP_VERSION
    + """
if is_old(redis.call('GET', KEYS[2])) then return 0 end
redis.call('SET', KEYS[1], ARGV[6])
"""
    + _EXPIRE
)
"""KEYS: row, version. ARGV[5]: seconds that the row lives, [6]: the value."""

HASH: Final = _script(
    _IS_OLD
    + _KEEP_VERSION
    + """
if is_old(redis.call('GET', KEYS[2])) then return 0 end
local pairs_at = 7 + tonumber(ARGV[6])
local kept = {}
for i = 7, pairs_at - 1 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value then kept[#kept + 1] = ARGV[i]; kept[#kept + 1] = value end
end
redis.call('HLEN', KEYS[1])
redis.call('DEL', KEYS[1])
if pairs_at <= #ARGV then redis.call('HSET', KEYS[1], unpack(ARGV, pairs_at)) end
if #kept > 0 then redis.call('HSET', KEYS[1], unpack(kept)) end
"""
    + _EXPIRE
)
"""KEYS: row, version. ARGV[5]: seconds that the row lives, [6]: how many fields are kept, their names, then names and values. HLEN
refuses a key that holds something else."""

JSON: Final = _script(
    _IS_OLD
    + _KEEP_VERSION
    + """
if is_old(redis.call('GET', KEYS[2])) then return 0 end
local kept = {}
for i = 7, #ARGV do kept[i] = redis.call('JSON.GET', KEYS[1], ARGV[i]) end
redis.call('JSON.SET', KEYS[1], '$', ARGV[6])
for i = 7, #ARGV do
  local value = kept[i] and string.match(kept[i], '^%[(.+)%]$')
  if value then redis.call('JSON.SET', KEYS[1], ARGV[i], value) else redis.call('JSON.DEL', KEYS[1], ARGV[i]) end
end
"""
    + _EXPIRE
)
"""KEYS: row, version. ARGV[5]: seconds that the row lives, [6]: the document, then paths whose values are kept; where there
is none, there is none after it."""

MEMBER: Final = _script(
    _IS_OLD
    + """
local now = tonumber(redis.call('TIME')[1])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. now, 'LIMIT', 0, 10)) do
  redis.call('ZREM', KEYS[3], member)
  redis.call('HDEL', KEYS[2], member)
end
if is_old(redis.call('HGET', KEYS[2], ARGV[7])) then return 0 end
if ARGV[6] == '1' then
  redis.call('SADD', KEYS[1], ARGV[7])
  redis.call('ZREM', KEYS[3], ARGV[7])
else
  redis.call('SREM', KEYS[1], ARGV[7])
  if tonumber(ARGV[5]) > 0 then redis.call('ZADD', KEYS[3], now + tonumber(ARGV[5]), ARGV[7]) end
end
redis.call('HSET', KEYS[2], ARGV[7], version)
return 1
"""
)
"""KEYS: set, versions by member, deleted members by the time at which their version is forgotten. ARGV[5]: seconds for which that of a
deleted member is kept, [6]: 1 to add, 0 to remove, [7]: the member."""

STREAM: Final = _script("""
local last = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '-1')
local at, done = 3, nil
while at <= #ARGV do
  local offset, count = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  if offset > last then
    local entry = {'XADD', KEYS[1]}
    if ARGV[2] ~= '0' then entry[3] = 'MAXLEN'; entry[4] = '~'; entry[5] = ARGV[2] end
    entry[#entry + 1] = '*'
    for i = at + 2, at + 1 + count do entry[#entry + 1] = ARGV[i] end
    local answer = redis.pcall(unpack(entry))
    if type(answer) == 'table' and answer.err then
      if done then redis.call('HSET', KEYS[2], ARGV[1], done) end
      return answer
    end
    done = ARGV[at]
  end
  at = at + 2 + count
end
if done then redis.call('HSET', KEYS[2], ARGV[1], done) end
return 1
""")
"""KEYS: stream, offsets by partition. ARGV: the partition, the length, then of each record its offset, how many texts, names and values.
What was added before an error stays, and is remembered."""

ALL: Final = (DELETE, STRING, HASH, JSON, MEMBER, STREAM)
