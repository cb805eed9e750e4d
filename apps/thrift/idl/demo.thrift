/**
 * The service of the example. Its methods cover results, exceptions, delays and one-way calls.
 */
namespace * demo

/** One field of each type, as in Apache Thrift's tests. Its published figures are for this struct. */
struct OneOfEach {
  1: required bool im_true
  2: required bool im_false
  3: required i8 a_bite
  4: required i16 integer16
  5: required i32 integer32
  6: required i64 integer64
  7: required double double_precision
  8: required string some_characters
  9: required string zomg_unicode
  10: required bool what_who
  11: required binary base64
  12: required list<i8> byte_list
  13: required list<i16> i16_list
  14: required list<i64> i64_list
}

/** A word that `count` does not count. */
exception Forbidden {
  1: required string word
}

service Demo {
  /** Returns nothing. */
  void ping()
  i64 add(1: i64 left, 2: i64 right)
  string echo(1: string text)
  /** Returns the text after `millis` milliseconds, at most 60000, so that later calls overtake it. */
  string later(1: string text, 2: i32 millis)
  OneOfEach each(1: OneOfEach value)
  i64 sum(1: list<i64> values)
  /** Returns how often each word occurs. The empty word is forbidden. */
  map<string, i32> count(1: list<string> words) throws (1: Forbidden forbidden)
  /** Counts a note. A one-way call. */
  oneway void note(1: string text)
  /** Returns the number of notes so far. */
  i64 notes()
}
