// The visible time range, which all charts share.

const MIN_RANGE = 20; // microseconds

class Range {
  constructor() {
    this.begin = this.min = 0;
    this.end = this.max = 1;
    this.follows = false;
    this.listeners = [];
  }

  get length() { return this.end - this.begin; }

  get isAll() { return this.begin <= this.min && this.end >= this.max; }

  /** Extends the run; a range that showed all of the run, or follows its end, moves along. */
  extend(begin, end) {
    const wasAll = this.isAll;
    const length = this.length;
    this.min = begin;
    this.max = Math.max(end, begin + MIN_RANGE);
    if (wasAll) this.set(this.min, this.max);
    else if (this.follows) this.set(this.max - length, this.max);
    else this.set(this.begin, this.end);
  }

  set(begin, end) {
    const length = Math.min(Math.max(end - begin, MIN_RANGE), this.max - this.min);
    this.begin = Math.min(Math.max(begin, this.min), this.max - length);
    this.end = this.begin + length;
    for (const listener of this.listeners) listener();
  }

  /** Zooms by a factor around a place in the range, from 0 to 1. */
  zoom(factor, place = 0.5) {
    const length = Math.max(this.length * factor, MIN_RANGE);
    const fixed = this.begin + this.length * place;
    this.set(fixed - length * place, fixed + length * (1 - place));
  }

  pan(part) {
    this.follows = false;
    this.set(this.begin + this.length * part, this.end + this.length * part);
  }

  all() { this.set(this.min, this.max); }
}
