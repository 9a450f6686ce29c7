import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The calls of Admin that user interfaces make. */
final class AdminChecks {
    private final ClientChecks at;
    private final Admin admin;
    private final int node;

    AdminChecks(ClientChecks at) {
        this.at = at;
        admin = at.admin;
        try {
            node = admin.describeCluster().nodes().get().iterator().next().id();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    void run() {
        at.checks.check("admin-cluster", () -> {
            var told = admin.describeCluster(
                new DescribeClusterOptions().includeAuthorizedOperations(true));
            Checks.equal(22, told.clusterId().get().length());
            Node controller = told.controller().get();
            Checks.equal(node, controller.id());
            Checks.that(told.authorizedOperations().get() != null, "no operations");
            admin.describeFeatures().featureMetadata().get();
        });
        at.checks.check("admin-topics", this::topics);
        at.checks.check("admin-topics-refused", this::topicsRefused);
        at.checks.check("admin-topic-configs", this::topicConfigs);
        at.checks.check("admin-broker-configs", this::brokerConfigs);
        at.checks.check("admin-offsets", this::offsets);
        at.checks.check("admin-delete-records", this::deleteRecords);
        at.checks.check("admin-groups", this::groups);
        at.checks.check("admin-removes-members", this::removesMembers);
        at.checks.check("admin-log-dirs", this::logDirs);
        at.checks.check("admin-reassignments", this::reassignments);
        at.checks.check("admin-transactions", this::transactions);
        at.checks.check("admin-acls-without-an-authorizer", this::acls);
        at.checks.check("admin-quotas", this::quotas);
        at.checks.check("admin-scram-users", () -> Checks.that(
            admin.describeUserScramCredentials().all().get() != null, "no answer"));
    }

    private void produce(String topic, int count) {
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(Checks.settings(at.server), text, text)) {
            for (int n = 0; n < count; n++) {
                producer.send(new ProducerRecord<>(topic, 0, 1000L * (n + 1), "k", "v" + n));
            }
        }
    }

    private void topics() throws Exception {
        String name = "described-" + at.run;
        NewTopic wanted = new NewTopic(name, Map.of(0, List.of(node), 1, List.of(node)))
            .configs(Map.of("cleanup.policy", "compact", "min.insync.replicas", "1"));
        admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true))
            .all().get();
        Checks.that(!admin.listTopics().names().get().contains(name), "made by validateOnly");
        var made = admin.createTopics(List.of(wanted));
        Checks.equal(2, made.numPartitions(name).get());
        Checks.equal("compact", made.config(name).get().get("cleanup.policy").value());
        Uuid id = made.topicId(name).get();
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all().get();
        TopicDescription told = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id)))
            .allTopicIds().get().get(id);
        Checks.equal(name, told.name());
        Checks.equal(3, told.partitions().size());
        told = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
        Checks.equal(id, told.topicId());
        Checks.that(told.partitions().stream().allMatch(
            p -> p.leader().id() == node && p.isr().size() == 1 && p.replicas().size() == 1), told);
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        Checks.until("its end", () -> !admin.listTopics().names().get().contains(name));
        Checks.fails(UnknownTopicOrPartitionException.class,
            () -> admin.describeTopics(List.of(name)).allTopicNames().get());
    }

    private void topicsRefused() throws Exception {
        String name = at.topic("there", 2);
        Checks.fails(TopicExistsException.class, () -> create(new NewTopic(name, 1, (short) 1)));
        Checks.fails(InvalidReplicationFactorException.class,
            () -> create(new NewTopic("two-" + at.run, 1, (short) 2)));
        Checks.fails(InvalidPartitionsException.class,
            () -> create(new NewTopic("zero-" + at.run, 0, (short) 1)));
        Checks.fails(InvalidTopicException.class,
            () -> create(new NewTopic("not a name", 1, (short) 1)));
        Checks.fails(InvalidConfigurationException.class, () -> create(
            new NewTopic("set-" + at.run, 1, (short) 1).configs(Map.of("retention.ms", "x"))));
        Checks.fails(InvalidPartitionsException.class, () -> admin.createPartitions(
            Map.of(name, NewPartitions.increaseTo(1))).all().get());
        Checks.fails(UnknownTopicOrPartitionException.class,
            () -> admin.deleteTopics(List.of("none-" + at.run)).all().get());
    }

    private void create(NewTopic topic) throws Exception {
        admin.createTopics(List.of(topic)).all().get();
    }

    private Config config(ConfigResource of) throws Exception {
        return admin.describeConfigs(List.of(of), new DescribeConfigsOptions()
            .includeSynonyms(true).includeDocumentation(true)).all().get().get(of);
    }

    private void alter(ConfigResource of, String name, String value, AlterConfigOp.OpType how)
            throws Exception {
        admin.incrementalAlterConfigs(Map.of(of, List.of(
            new AlterConfigOp(new ConfigEntry(name, value), how)))).all().get();
    }

    private void topicConfigs() throws Exception {
        ConfigResource topic =
            new ConfigResource(ConfigResource.Type.TOPIC, at.topic("configured", 1));
        alter(topic, "retention.ms", "60000", AlterConfigOp.OpType.SET);
        ConfigEntry own = config(topic).get("retention.ms");
        Checks.equal("60000", own.value());
        Checks.equal(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, own.source());
        Checks.equal(ConfigEntry.ConfigType.LONG, own.type());
        Checks.that(!own.isReadOnly() && !own.isSensitive() && !own.isDefault(), own);
        Checks.equal(own.source(), own.synonyms().get(0).source());
        alter(topic, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
        Checks.equal(Set.of("delete", "compact"),
            Set.of(config(topic).get("cleanup.policy").value().split(",")));
        alter(topic, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
        Checks.equal("compact", config(topic).get("cleanup.policy").value());
        alter(topic, "retention.ms", null, AlterConfigOp.OpType.DELETE);
        Checks.equal("604800000", config(topic).get("retention.ms").value());
        Checks.fails(InvalidConfigurationException.class,
            () -> alter(topic, "no.such", "1", AlterConfigOp.OpType.SET));
        Checks.fails(UnknownTopicOrPartitionException.class, () -> config(
            new ConfigResource(ConfigResource.Type.TOPIC, "none-" + at.run)));
    }

    private void brokerConfigs() throws Exception {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "" + node);
        Config told = config(broker);
        Checks.that(told.entries().size() > 50, told.entries().size());
        Checks.that(told.get("log.dirs").isReadOnly(), told.get("log.dirs"));
        for (String name : List.of("log.retention.ms", "num.partitions", "message.max.bytes",
                "log.cleaner.delete.retention.ms", "min.insync.replicas")) {
            Checks.that(told.get(name) != null, name);
        }
    }

    private long offset(TopicPartition of, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(of, spec)).partitionResult(of).get().offset();
    }

    private void offsets() throws Exception {
        String topic = at.topic("listed", 1);
        TopicPartition of = new TopicPartition(topic, 0);
        Checks.equal(-1L, offset(of, OffsetSpec.maxTimestamp()));
        produce(topic, 10);
        Checks.equal(0L, offset(of, OffsetSpec.earliest()));
        Checks.equal(10L, offset(of, OffsetSpec.latest()));
        Checks.equal(9L, offset(of, OffsetSpec.maxTimestamp()));
        Checks.equal(4L, offset(of, OffsetSpec.forTimestamp(4001)));
        Checks.equal(-1L, offset(of, OffsetSpec.forTimestamp(99_000)));
        Checks.equal(0L, offset(of, OffsetSpec.earliestLocal()));
        Checks.equal(-1L, offset(of, OffsetSpec.latestTiered()));
        Checks.equal(10_000L, admin.listOffsets(Map.of(of, OffsetSpec.maxTimestamp()))
            .partitionResult(of).get().timestamp());
    }

    private void deleteRecords() throws Exception {
        String topic = at.topic("cut", 1);
        TopicPartition of = new TopicPartition(topic, 0);
        produce(topic, 10);
        for (long[] row : new long[][] {{4, 4}, {2, 4}, {-1, 10}}) {
            Checks.equal(row[1], admin.deleteRecords(Map.of(of,
                RecordsToDelete.beforeOffset(row[0]))).lowWatermarks().get(of).get().lowWatermark());
        }
        Checks.equal(10L, offset(of, OffsetSpec.earliest()));
        Checks.fails(OffsetOutOfRangeException.class, () -> admin.deleteRecords(Map.of(of,
            RecordsToDelete.beforeOffset(11))).all().get());
    }

    private KafkaConsumer<String, String> member(String group, Object... settings) {
        var all = Checks.settings(at.server, settings);
        all.put("group.id", group);
        all.put("enable.auto.commit", false);
        all.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    @SuppressWarnings("deprecation") // listConsumerGroups: newer clients have listGroups beside it
    private void groups() throws Exception {
        String topic = at.topic("of-a-group", 2);
        String group = topic;
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        try (KafkaConsumer<String, String> consumer = member(group)) {
            consumer.subscribe(List.of(topic));
            Checks.until("its part", () -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size() == 2;
            });
            ConsumerGroupDescription told =
                admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            Checks.equal("Stable", told.state().toString());
            Checks.equal("range", told.partitionAssignor());
            Checks.equal(Set.of(first, second),
                told.members().iterator().next().assignment().topicPartitions());
        }
        Checks.that(admin.listConsumerGroups().all().get().stream().anyMatch(
            g -> g.groupId().equals(group)), "not listed");
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(3, "by hand"),
            second, new OffsetAndMetadata(4))).all().get();
        Map<TopicPartition, OffsetAndMetadata> committed =
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        Checks.equal("by hand", committed.get(first).metadata());
        Checks.equal(4L, committed.get(second).offset());
        admin.deleteConsumerGroupOffsets(group, Set.of(second)).all().get();
        Checks.equal(Set.of(first), admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata().get().keySet());
        admin.deleteConsumerGroups(List.of(group)).all().get();
        Checks.fails(GroupIdNotFoundException.class,
            () -> admin.deleteConsumerGroups(List.of(group)).all().get());
    }

    private void removesMembers() throws Exception {
        String topic = at.topic("removed-from", 1);
        try (KafkaConsumer<String, String> consumer =
                member(topic, "group.instance.id", "static")) {
            consumer.subscribe(List.of(topic));
            Checks.until("its part", () -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size() == 1;
            });
            admin.removeMembersFromConsumerGroup(topic, new RemoveMembersFromConsumerGroupOptions(
                List.of(new MemberToRemove("static")))).all().get();
            Checks.equal("Empty", admin.describeConsumerGroups(List.of(topic)).all().get()
                .get(topic).state().toString());
        }
    }

    private void logDirs() throws Exception {
        String topic = at.topic("sized", 1);
        produce(topic, 10);
        Map<String, LogDirDescription> told =
            admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        Checks.equal(1, told.size());
        LogDirDescription here = told.values().iterator().next();
        Checks.equal(null, here.error());
        Checks.that(here.replicaInfos().get(new TopicPartition(topic, 0)).size() > 0, here);
        Checks.that(here.totalBytes().getAsLong() >= here.usableBytes().getAsLong(), here);
    }

    private void reassignments() throws Exception {
        String topic = at.topic("moved", 1);
        TopicPartition of = new TopicPartition(topic, 0);
        Checks.equal(Map.of(), admin.listPartitionReassignments().reassignments().get());
        admin.alterPartitionReassignments(Map.of(of,
            Optional.of(new NewPartitionReassignment(List.of(node))))).all().get();
        Checks.fails(InvalidReplicaAssignmentException.class, () ->
            admin.alterPartitionReassignments(Map.of(of,
                Optional.of(new NewPartitionReassignment(List.of(node + 1))))).all().get());
        Checks.fails(org.apache.kafka.common.errors.NoReassignmentInProgressException.class, () ->
            admin.alterPartitionReassignments(Map.of(of, Optional.empty())).all().get());
        Checks.that(admin.electLeaders(ElectionType.PREFERRED, Set.of(of)).partitions().get()
            .get(of).get() instanceof ElectionNotNeededException, "elected");
    }

    private void transactions() throws Exception {
        String topic = at.topic("open", 1);
        TopicPartition of = new TopicPartition(topic, 0);
        StringSerializer text = new StringSerializer();
        KafkaProducer<String, String> producer = new KafkaProducer<>(
            Checks.settings(at.server, "transactional.id", topic), text, text);
        producer.initTransactions();
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, "v")).get();
        Checks.that(admin.listTransactions().all().get().stream().anyMatch(
            t -> t.transactionalId().equals(topic) && t.state().toString().equals("Ongoing")),
            "not listed");
        Checks.equal(Set.of(of), admin.describeTransactions(List.of(topic)).all().get().get(topic)
            .topicPartitions());
        Checks.equal(1, admin.describeProducers(List.of(of)).all().get().get(of)
            .activeProducers().size());
        admin.fenceProducers(List.of(topic)).all().get();
        Checks.fails(org.apache.kafka.common.KafkaException.class, producer::commitTransaction);
        producer.close(Duration.ZERO);
    }

    private void acls() throws Exception {
        AclBinding binding = new AclBinding(
            new ResourcePattern(ResourceType.TOPIC, "t", PatternType.LITERAL),
            new AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW));
        Checks.fails(SecurityDisabledException.class,
            () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
        Checks.fails(SecurityDisabledException.class,
            () -> admin.createAcls(List.of(binding)).all().get());
        Checks.fails(SecurityDisabledException.class,
            () -> admin.deleteAcls(List.of(AclBindingFilter.ANY)).all().get());
    }

    private void quotas() throws Exception {
        ClientQuotaEntity who = new ClientQuotaEntity(Map.of("user", "u-" + at.run));
        ClientQuotaFilter filter = ClientQuotaFilter.contains(
            List.of(ClientQuotaFilterComponent.ofEntity("user", "u-" + at.run)));
        set(who, 1024.0);
        Checks.equal(Map.of(who, Map.of("consumer_byte_rate", 1024.0)),
            admin.describeClientQuotas(filter).entities().get());
        set(who, null);
        Checks.equal(Map.of(), admin.describeClientQuotas(filter).entities().get());
    }

    private void set(ClientQuotaEntity who, Double bytesPerSecond) throws Exception {
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(who, List.of(
            new ClientQuotaAlteration.Op("consumer_byte_rate", bytesPerSecond))))).all().get();
    }
}
