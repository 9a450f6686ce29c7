import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What kafbat's UI and AKHQ ask as they start and show their pages, in that order. */
final class InterfaceChecks {
    private static final int RECORDS = 30;

    private final ClientChecks at;
    private final Admin admin;
    private String topic;
    private String group;

    InterfaceChecks(ClientChecks at) {
        this.at = at;
        admin = at.admin;
    }

    void run() {
        at.checks.check("interface-has-something-to-show", this::fill);
        at.checks.check("interface-kafbat-start", this::kafbatStart);
        at.checks.check("interface-kafbat-topics", this::kafbatTopics);
        at.checks.check("interface-kafbat-groups", this::kafbatGroups);
        at.checks.check("interface-kafbat-brokers", this::kafbatBrokers);
        at.checks.check("interface-kafbat-does-without", this::kafbatDoesWithout);
        at.checks.check("interface-akhq-topic", this::akhqTopic);
        at.checks.check("interface-akhq-search-by-time", this::akhqByTime);
        at.checks.check("interface-akhq-empties-a-topic", this::akhqEmpties);
    }

    private void fill() throws Exception {
        topic = at.topic("shown", 3);
        group = "shown-" + at.run;
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(Checks.settings(at.server), text, text)) {
            for (int n = 0; n < RECORDS; n++) {
                producer.send(new ProducerRecord<>(topic, n % 3, 1000L * (n + 1), "k" + n, "v" + n));
            }
        }
        TopicPartition first = new TopicPartition(topic, 0);
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(4))).all().get();
    }

    private List<TopicPartition> partitions() {
        List<TopicPartition> found = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            found.add(new TopicPartition(topic, n));
        }
        return found;
    }

    // --- kafbat -------------------------------------------------------------------------------

    /** Which version it is, and so what it offers, comes from the controller's settings. */
    private void kafbatStart() throws Exception {
        var told = admin.describeCluster();
        Node controller = told.controller().get();
        ConfigResource broker = broker(controller.id());
        String version = null;
        String deletion = "true";
        for (ConfigEntry one : admin.describeConfigs(List.of(broker)).all().get().get(broker).entries()) {
            version = one.name().contains("inter.broker.protocol.version") ? one.value() : version;
            deletion = one.name().equals("delete.topic.enable") ? one.value() : deletion;
        }
        Checks.that(version != null, "no version");
        Checks.that(Float.parseFloat(version.split("-")[0]) >= 2.6f, "of old: " + version);
        Checks.equal("true", deletion);
        admin.describeFeatures().featureMetadata().get();
        expect(SecurityDisabledException.class, admin.describeAcls(AclBindingFilter.ANY).values());
        var full = admin.describeCluster(
            new DescribeClusterOptions().includeAuthorizedOperations(true));
        Checks.that(full.authorizedOperations().get() != null, "no operations");
    }

    private void kafbatTopics() throws Exception {
        Set<String> names =
            admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
        Checks.that(names.contains(topic), "not listed");
        for (var described : admin.describeTopics(names).topicNameValues().values()) {
            TopicDescription one = described.get();
            Checks.that(one.partitions().stream().allMatch(p -> p.leader() != null), one.name());
        }
        List<ConfigResource> resources = new ArrayList<>();
        names.forEach(name -> resources.add(new ConfigResource(ConfigResource.Type.TOPIC, name)));
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        for (var config : admin.describeConfigs(resources, options).values().values()) {
            ConfigEntry policy = config.get().get("cleanup.policy");
            Checks.that(!policy.synonyms().isEmpty(), "no synonyms");
            Checks.that(policy.documentation() != null, "no documentation");
        }
        for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest())) {
            Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
            partitions().forEach(one -> asked.put(one, spec));
            for (var offset : admin.listOffsets(asked).all().get().values()) {
                Checks.equal(spec instanceof OffsetSpec.LatestSpec ? 10L : 0L, offset.offset());
            }
        }
        Checks.equal(3, admin.describeProducers(partitions()).all().get().size());
    }

    private void kafbatGroups() throws Exception {
        Collection<String> names = new ArrayList<>();
        admin.listConsumerGroups().all().get().forEach(one -> names.add(one.groupId()));
        Checks.that(names.contains(group), "not listed");
        Checks.equal("Empty", admin.describeConsumerGroups(List.of(group)).all().get()
            .get(group).state().toString());
        var asked = Map.of(group, new ListConsumerGroupOffsetsSpec().topicPartitions(null));
        var offsets = admin.listConsumerGroupOffsets(asked).all().get().get(group);
        Checks.equal(1, offsets.size());
        Checks.equal(4L, offsets.get(new TopicPartition(topic, 0)).offset());
    }

    private void kafbatBrokers() throws Exception {
        Collection<Node> nodes = admin.describeCluster().nodes().get();
        int node = nodes.iterator().next().id();
        var dirs = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        Checks.that(dirs.values().stream().anyMatch(dir -> dir.replicaInfos().containsKey(
            new TopicPartition(topic, 2))), "not in any directory");
        String here = dirs.keySet().iterator().next();
        admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica(topic, 0, node), here)).all().get();
        ConfigEntry entry = new ConfigEntry("log.cleaner.delete.retention.ms", "90000000");
        for (var kind : List.of(AlterConfigOp.OpType.SET, AlterConfigOp.OpType.DELETE)) {
            var asked = Map.of(broker(node), List.<AlterConfigOp>of(new AlterConfigOp(entry, kind)));
            admin.incrementalAlterConfigs(new HashMap<>(asked)).all().get();
        }
        Checks.that(admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get() != null,
            "no quotas");
    }

    /** What KRaft has: the interface takes the refusal for an answer. */
    private void kafbatDoesWithout() throws Exception {
        expect(UnsupportedVersionException.class, admin.describeMetadataQuorum().quorumInfo());
    }

    // --- AKHQ ---------------------------------------------------------------------------------

    private KafkaConsumer<String, String> consumer() {
        StringDeserializer text = new StringDeserializer();
        return new KafkaConsumer<>(Checks.settings(at.server,
            "enable.auto.commit", "false", "auto.offset.reset", "earliest",
            "isolation.level", "read_committed"), text, text);
    }

    private void akhqTopic() throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer()) {
            var begins = consumer.beginningOffsets(partitions());
            var ends = consumer.endOffsets(partitions());
            partitions().forEach(one -> {
                Checks.equal(0L, begins.get(one));
                Checks.equal(10L, ends.get(one));
            });
            consumer.assign(partitions());
            partitions().forEach(one -> consumer.seek(one, 8));
            Checks.equal(6, read(consumer, 6).size());
        }
        var committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        Checks.equal(4L, committed.get(new TopicPartition(topic, 0)).offset());
    }

    private void akhqByTime() throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer()) {
            Map<TopicPartition, Long> asked = new HashMap<>();
            partitions().forEach(one -> asked.put(one, 25_000L));
            consumer.assign(partitions());
            consumer.offsetsForTimes(asked).forEach((one, found) -> {
                Checks.equal(8L, found.offset());
                consumer.seek(one, found.offset());
            });
            for (ConsumerRecord<String, String> one : read(consumer, 6)) {
                Checks.that(one.timestamp() >= 25_000, "too early: " + one.timestamp());
            }
            partitions().forEach(one -> asked.put(one, 10_000_000L));
            Checks.that(consumer.offsetsForTimes(asked).values().stream()
                .allMatch(found -> found == null), "nothing is so late");
        }
    }

    private void akhqEmpties() throws Exception {
        Map<TopicPartition, RecordsToDelete> all = new HashMap<>();
        partitions().forEach(one -> all.put(one, RecordsToDelete.beforeOffset(10)));
        for (var done : admin.deleteRecords(all).lowWatermarks().values()) {
            Checks.equal(10L, done.get().lowWatermark());
        }
        try (KafkaConsumer<String, String> consumer = consumer()) {
            Checks.equal(consumer.endOffsets(partitions()), consumer.beginningOffsets(partitions()));
        }
        admin.deleteConsumerGroups(List.of(group)).all().get();
        admin.deleteTopics(List.of(topic)).all().get();
    }

    private static List<ConsumerRecord<String, String>> read(
            KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long until = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (found.size() < count && System.nanoTime() < until) {
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
        }
        return found;
    }

    private static ConfigResource broker(int id) {
        return new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(id));
    }

    private static void expect(
            Class<? extends Exception> kind, org.apache.kafka.common.KafkaFuture<?> future)
            throws Exception {
        try {
            future.get();
        } catch (ExecutionException e) {
            Checks.that(kind.isInstance(e.getCause()), "another error: " + e.getCause());
            return;
        }
        throw new AssertionError("no " + kind.getSimpleName());
    }
}
