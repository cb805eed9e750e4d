//! The program of the article that started it, and the ways to write it by hand.

mod common;

fn main() {
    common::bench([figures::article::group(300_000)]);
}
