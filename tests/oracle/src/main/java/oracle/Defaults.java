package oracle;

import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;

/**
 * Every setting of a broker and of a topic with its default, as Kafka's own definitions have them: one JSON line
 * {"broker": {name: default}, "internal": the same of those it documents nowhere, "topic": {name: default}}. A default
 * is the text that a properties file would have; null where there is none, and passwords have none.
 */
public final class Defaults {
    // The broker's class is not among the jars of a lean build, so neither is named at compile time.
    private static final String BROKER = "org.apache.kafka.server.config.AbstractKafkaConfig";
    private static final String TOPIC = "org.apache.kafka.storage.internals.log.LogConfig";

    public static void main(String[] args) throws Exception {
        ConfigDef broker = (ConfigDef) Class.forName(BROKER).getField("CONFIG_DEF").get(null);
        ConfigDef topic = (ConfigDef) Class.forName(TOPIC).getMethod("configDefCopy").invoke(null);
        Map<String, Object> found = new TreeMap<>();
        found.put("broker", defaults(broker, false));
        found.put("internal", defaults(broker, true));
        found.put("topic", defaults(topic, false));
        System.out.println(new com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(found));
    }

    private static Map<String, String> defaults(ConfigDef settings, boolean internal) {
        Map<String, String> found = new TreeMap<>();
        for (ConfigDef.ConfigKey key : settings.configKeys().values()) {
            if (key.internalConfig != internal) continue;
            Object value = key.hasDefault() ? key.defaultValue : null;
            found.put(key.name, value == null ? null : ConfigDef.convertToString(value, key.type()));
        }
        return found;
    }
}
