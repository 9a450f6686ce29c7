import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Groups by the classic protocol: eager, cooperative and static members. */
final class GroupChecks {
    private static final int PARTITIONS = 4;

    private final ClientChecks at;

    GroupChecks(ClientChecks at) {
        this.at = at;
    }

    void run() {
        at.checks.check("group-eager", () -> sharedAndTakenOver(RangeAssignor.class, true));
        at.checks.check("group-cooperative",
            () -> sharedAndTakenOver(CooperativeStickyAssignor.class, false));
        at.checks.check("group-static-member", this::staticMember);
        at.checks.check("group-commits-and-goes-on", this::commitsAndGoesOn);
    }

    /** A consumer with what it was assigned and told to give up. */
    private final class Member implements AutoCloseable {
        final Set<TopicPartition> revoked = new HashSet<>();
        final KafkaConsumer<String, String> consumer;
        int assignments;

        Member(String topic, String group, Object... settings) {
            Properties all = Checks.settings(at.server, settings);
            all.put("group.id", group);
            all.put("auto.offset.reset", "earliest");
            all.put("enable.auto.commit", false);
            all.put("session.timeout.ms", 6000);
            all.put("heartbeat.interval.ms", 100);
            consumer =
                new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> these) {
                    revoked.addAll(these);
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> these) {
                    assignments++;
                }
            });
        }

        List<String> poll() {
            List<String> values = new ArrayList<>();
            consumer.poll(Duration.ofMillis(50)).forEach(r -> values.add(r.value()));
            return values;
        }

        int owns() {
            return consumer.assignment().size();
        }

        @Override
        public void close() {
            consumer.close();
        }
    }

    private void sharedAndTakenOver(Class<?> assignor, boolean eager) throws Exception {
        String topic = at.topic("shared-" + assignor.getSimpleName(), PARTITIONS);
        String strategy = "partition.assignment.strategy";
        try (Member one = new Member(topic, topic, strategy, assignor.getName())) {
            Checks.until("all for one", () -> {
                one.poll();
                return one.owns() == PARTITIONS;
            });
            try (Member two = new Member(topic, topic, strategy, assignor.getName())) {
                Checks.until("halves", () -> {
                    one.poll();
                    two.poll();
                    return one.owns() == PARTITIONS / 2 && two.owns() == PARTITIONS / 2;
                });
                Set<TopicPartition> both = new HashSet<>(one.consumer.assignment());
                both.addAll(two.consumer.assignment());
                Checks.equal(PARTITIONS, both.size());
                Checks.equal(eager ? PARTITIONS : PARTITIONS / 2, one.revoked.size());
            }
            Checks.until("all taken over", () -> {
                one.poll();
                return one.owns() == PARTITIONS;
            });
        }
    }

    private void staticMember() throws Exception {
        String topic = at.topic("static", PARTITIONS);
        try (Member stays = new Member(topic, topic, "group.instance.id", "stays")) {
            Set<TopicPartition> before;
            try (Member leaves = new Member(topic, topic, "group.instance.id", "leaves")) {
                Checks.until("halves", () -> {
                    stays.poll();
                    leaves.poll();
                    return stays.owns() == PARTITIONS / 2 && leaves.owns() == PARTITIONS / 2;
                });
                before = Set.copyOf(leaves.consumer.assignment());
            }
            int assignments = stays.assignments;
            try (Member back = new Member(topic, topic, "group.instance.id", "leaves")) {
                Checks.until("back", () -> {
                    stays.poll();
                    back.poll();
                    return back.owns() == PARTITIONS / 2;
                });
                Checks.equal(before, Set.copyOf(back.consumer.assignment()));
            }
            Checks.equal(assignments, stays.assignments);
        }
    }

    private void commitsAndGoesOn() throws Exception {
        String topic = at.topic("committed", 1);
        TopicPartition all = new TopicPartition(topic, 0);
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(Checks.settings(at.server), text, text)) {
            IntStream.range(0, 10).forEach(n -> producer.send(
                new ProducerRecord<>(topic, "k", "" + n)));
        }
        List<String> seen = new ArrayList<>();
        try (Member first = new Member(topic, topic)) {
            Checks.until("ten", () -> seen.addAll(first.poll()) && seen.size() == 10);
            first.consumer.commitSync(Map.of(all, new OffsetAndMetadata(6, "why")));
        }
        try (Member second = new Member(topic, topic)) {
            seen.clear();
            Checks.until("four", () -> seen.addAll(second.poll()) && seen.size() == 4);
            Checks.equal(List.of("6", "7", "8", "9"), seen);
            OffsetAndMetadata told = second.consumer.committed(Set.of(all)).get(all);
            Checks.equal(6L, told.offset());
            Checks.equal("why", told.metadata());
        }
    }
}
