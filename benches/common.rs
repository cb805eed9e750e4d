//! Hands the groups of a scenario to criterion.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use figures::measure::Group;

/// Benchmarks the groups that `groups` makes, each of which is dropped before the next is made.
pub(crate) fn bench(groups: impl IntoIterator<Item = Group>) {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for Group { name, contenders } in groups {
        let mut group = criterion.benchmark_group(name);
        for mut contender in contenders {
            group.throughput(Throughput::Elements(contender.items));
            // The scenarios keep the time themselves: setting up is not in it.
            group.bench_function(BenchmarkId::from_parameter(contender.name), |bencher| {
                bencher.iter_custom(|runs| (0..runs).map(|_| contender.run().elapsed).sum());
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
